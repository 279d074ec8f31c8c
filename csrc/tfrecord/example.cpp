#include "tfrecord/example.h"

#include <stdexcept>
#include <string>

#include "tfrecord/any_example.h"
#include "tfrecord/packed.h"
#include "tfrecord/usual_example.h"

namespace datapipes::tfrecord {
namespace {

[[noreturn]] void wrong_targets(const std::string& what) { throw std::invalid_argument("ExampleParser.parse: " + what); }

std::vector<Store> stores_of(const Columns& columns, std::span<const Target> targets, std::int64_t first_row) {
  if (targets.size() != columns.size()) {
    wrong_targets(std::to_string(targets.size()) + " targets for " + std::to_string(columns.size()) +
                  " columns. Pass one for each.");
  }
  std::vector<Store> stores;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].num_rows != targets[0].num_rows) {
      wrong_targets("target " + std::to_string(i) + " has " + std::to_string(targets[i].num_rows) + " rows, target 0 has " +
                    std::to_string(targets[0].num_rows) + ".");
    }
    stores.push_back(store_of(columns[i].kind, targets[i].dtype));
    if (stores.back().entry_bytes == 0) {
      wrong_targets("target " + std::to_string(i) + " is " + name_of(targets[i].dtype) +
                    "; a float32 column takes float16, float32 or float64.");
    }
  }
  if (first_row < 0 || first_row > targets[0].num_rows) {
    wrong_targets("first_row is " + std::to_string(first_row) + ", must be in [0, " + std::to_string(targets[0].num_rows) + "].");
  }
  return stores;
}

}  // namespace

Extent ExampleParser::parse(Bytes data, std::span<const Target> targets, std::int64_t first_row) const {
  const auto stores = stores_of(columns_, targets, first_row);
  UsualExample usual(columns_, targets, stores, data.data() + data.size());
  AnyExample any(columns_, targets, stores);
  return each_record(data, [&](Bytes record, std::int64_t number) {
    const std::int64_t row = first_row + number;
    if (row == targets[0].num_rows) throw Problem("there are more records than rows (" + std::to_string(row) + ")");
    check_data_crc(record, record.size());
    const Bytes example = data_of(record, record.size());
    if (!usual.read(example, row)) any.read(example, row);
  });
}

}  // namespace datapipes::tfrecord
