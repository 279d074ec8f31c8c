#include "tfrecord/columns.h"

#include <stdexcept>
#include <utility>

namespace datapipes::tfrecord {
namespace {

void check(const Column& column, std::size_t number) {
  const std::string where = "ExampleParser: column " + std::to_string(number);
  if (column.width < 1) {
    throw std::invalid_argument(where + " has " + std::to_string(column.width) + " values, must have 1 or more.");
  }
  const auto given = column.kind == Kind::kFloat32 ? column.default_floats.size() : column.default_ints.size();
  if (column.has_default && std::cmp_not_equal(given, column.width)) {
    throw std::invalid_argument(where + " has " + std::to_string(given) + " default values, must have " +
                                std::to_string(column.width) + ".");
  }
}

}  // namespace

Columns::Columns(std::vector<Column> columns) : columns_(std::move(columns)), next_(columns_.size(), -1) {
  if (columns_.empty()) throw std::invalid_argument("ExampleParser needs 1 column or more.");
  std::vector<int> last;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    check(columns_[i], i);
    const auto [found, is_new] = keys_.try_emplace(columns_[i].key, static_cast<int>(first_.size()));
    const auto key = static_cast<std::size_t>(found->second);
    if (is_new) {
      first_.push_back(static_cast<int>(i));
      last.push_back(static_cast<int>(i));
    } else {
      next_[static_cast<std::size_t>(std::exchange(last[key], static_cast<int>(i)))] = static_cast<int>(i);
    }
    key_of_.push_back(found->second);
  }
}

int Columns::number_of(Bytes key) const {
  const auto found = keys_.find({reinterpret_cast<const char*>(key.data()), key.size()});
  return found == keys_.end() ? kUnknown : found->second;
}

}  // namespace datapipes::tfrecord
