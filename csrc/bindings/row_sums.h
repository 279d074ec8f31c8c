// row_sums.h: RowSums over NumPy arrays, kept for many calls of the samplers.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

#include "bindings/numpy.h"
#include "sampling/row_sums.h"

namespace datapipes {

class ArrayRowSums {
 public:
  ArrayRowSums(Array<double> sums, Array<double> coarse, std::optional<Array<std::int64_t>> drawable)
      : sums_(std::move(sums)), coarse_(std::move(coarse)), drawable_(std::move(drawable)) {
    view_ = {datapipes::view(sums_, "sums"), datapipes::view(coarse_, "coarse"), {}};
    if (drawable_) view_.drawable = datapipes::view(*drawable_, "drawable");
  }

  // The sums, which fit so many rows and edges; throws std::invalid_argument if they do not.
  const RowSums& of(std::int64_t num_rows, std::int64_t num_edges) const {
    check_row_sums(view_, num_rows, num_edges);
    return view_;
  }

 private:
  Array<double> sums_, coarse_;
  std::optional<Array<std::int64_t>> drawable_;
  RowSums view_;
};

}  // namespace datapipes
