// dlpack.h: hands memory to any array library under the DLPack ABI (version 0 structures, capsules named "dltensor"; see
// https://dmlc.github.io/dlpack/latest/c_api.html). Used because NumPy has no name for some dtypes, such as bfloat16. The
// thread that drops the last view releases the owner of the memory, with or without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace datapipes {

namespace dlpack {

// The fields are those of the ABI.
struct Device {
  std::int32_t type = 1;  // host memory
  std::int32_t id = 0;
};
enum : std::uint8_t { kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };  // codes of types
struct Type {
  std::uint8_t code, bits;
  std::uint16_t lanes = 1;
};
struct Array {
  void* data;
  Device device;
  std::int32_t num_dims;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // null: row-major
  std::uint64_t byte_offset;
};
struct Managed {
  Array array;
  void* context;
  void (*let_go)(Managed*);
};

struct Owned {
  Managed managed{};
  std::vector<std::int64_t> shape;
  std::shared_ptr<const void> keeper;
};

}  // namespace dlpack

// Returns a capsule that an array library takes over once: row-major `shape` at `data`, which `keeper` keeps alive.
inline pybind11::object to_dlpack(void* data, dlpack::Type type, std::vector<std::int64_t> shape,
                                  std::shared_ptr<const void> keeper) {
  auto owned = std::make_unique<dlpack::Owned>();
  owned->shape = std::move(shape);
  owned->keeper = std::move(keeper);
  owned->managed.array = {.data = data,
                          .device = {},
                          .num_dims = static_cast<std::int32_t>(owned->shape.size()),
                          .type = type,
                          .shape = owned->shape.data(),
                          .strides = nullptr,
                          .byte_offset = 0};
  owned->managed.context = owned.get();
  owned->managed.let_go = [](dlpack::Managed* managed) { delete static_cast<dlpack::Owned*>(managed->context); };
  PyObject* const capsule = PyCapsule_New(&owned->managed, "dltensor", [](PyObject* unused) {
    if (PyCapsule_IsValid(unused, "dltensor") == 0) return;  // a library took it over and renamed it
    auto* const managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(unused, "dltensor"));
    managed->let_go(managed);
  });
  if (capsule == nullptr) throw pybind11::error_already_set();
  owned.release();
  return pybind11::reinterpret_steal<pybind11::object>(capsule);
}

}  // namespace datapipes
