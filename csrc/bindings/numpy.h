// numpy.h: passes arrays between NumPy and the kernels, without a copy: inputs are viewed, outputs are handed over.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cxxabi.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "common/buffer.h"

namespace datapipes {

namespace py = pybind11;

// Lets other Python threads run while a kernel does. Once the interpreter ends, a daemon thread cannot take the GIL again, and
// unwinding the thread would end the process with an error. So the thread sleeps here until the process is gone.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() { take_back(); }

  // For a kernel that waits: runs the signal handlers, and throws the error that one of them raises (Ctrl-C).
  void look_at_signals() {
    take_back();
    std::exception_ptr raised;
    if (PyErr_CheckSignals() != 0) raised = std::make_exception_ptr(py::error_already_set());
    state_ = PyEval_SaveThread();
    if (raised) std::rethrow_exception(raised);
  }

 private:
  void take_back() {
    while (finalizing()) rest();
#if defined(__GLIBCXX__)
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {  // the interpreter has begun to end: it calls pthread_exit in here
      for (;;) rest();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }
  static void rest() { std::this_thread::sleep_for(std::chrono::seconds(1)); }
  static bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
  }
  PyThreadState* state_;
};

// Runs a kernel without the GIL, and returns its result.
template <class Kernel>
auto without_gil(Kernel&& kernel) {
  const GilRelease nogil;
  return kernel();
}

template <class T>
using Array = py::array_t<T, py::array::c_style>;

template <class T>
std::span<const T> view(const Array<T>& array, const char* name) {
  if (array.ndim() != 1) {
    throw std::invalid_argument(std::string(name) + " must have 1 dimension, got " + std::to_string(array.ndim()) + ".");
  }
  if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
    throw std::invalid_argument(std::string(name) + " is not aligned to its " + std::to_string(sizeof(T)) +
                                "-byte entries. Copy it.");
  }
  return {array.data(), static_cast<std::size_t>(array.shape(0))};
}

// Empty for None.
template <class T>
std::span<const T> view(const std::optional<Array<T>>& array, const char* name) {
  return array ? view(*array, name) : std::span<const T>();
}

// The array itself, never a converted copy, so a view lives as long as the given object.
template <class T>
Array<T> exact(py::handle given, const std::string& name, const std::string& needed = "it must be contiguous, of its dtype.") {
  if (!py::isinstance<Array<T>>(given))
    throw py::type_error(name + " is a " + std::string(py::str(py::type::of(given))) + " or has another dtype; " + needed);
  return py::reinterpret_borrow<Array<T>>(given);
}

// As `view`, for an array that the kernel writes.
template <class T>
std::span<T> writable(Array<T>& array, const char* name) {
  const auto seen = view(array, name);
  return {array.mutable_data(), seen.size()};  // throws ValueError if the array is read-only
}

inline void check_threads(int num_threads) {
  if (num_threads < 1) {
    throw std::invalid_argument("num_threads must be 1 or more, got " + std::to_string(num_threads) +
                                ". Pass torch.get_num_threads().");
  }
}

template <class T>
py::array_t<T> to_numpy(Buffer<T>&& buffer) {
  const auto size = buffer.size();
  if (buffer.data() == nullptr) return py::array_t<T>(0);
  auto owned = std::make_unique<Buffer<T>>(std::move(buffer));
  T* const data = owned->data();
  py::capsule owner(owned.get(), [](void* held) { delete static_cast<Buffer<T>*>(held); });
  owned.release();
  return py::array_t<T>(size, data, owner);
}

// The array if `is_wanted`, else None.
template <class T>
py::object to_numpy_if(bool is_wanted, Buffer<T>&& buffer) {
  if (!is_wanted) return py::none();
  return to_numpy(std::move(buffer));
}

}  // namespace datapipes
