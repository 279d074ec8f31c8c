#include "frame.h"

#if defined(__linux__)
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "dlpack.h"

namespace datapipes {

namespace py = pybind11;

namespace {

constexpr std::int32_t kHostMemory = 1, kPinnedMemory = 3;
constexpr std::size_t kMostDims = 64;  // as many as torch has

[[noreturn]] void damaged(const char* what) {
  throw std::invalid_argument(std::string("ShmChannel.recv: ") + what +
                              " of the message makes no sense. Use the same version of datapipes in all processes.");
}

bool is_row_major(const dlpack::Array& array) {
  if (array.strides == nullptr) return true;
  std::int64_t wanted = 1;
  for (auto d = array.num_dims; d-- > 0;) {
    if (array.shape[d] == 0) return true;
    if (array.shape[d] != 1 && array.strides[d] != wanted) return false;
    wanted *= array.shape[d];
  }
  return true;
}

// What DLPack says of a tensor that can be pointed at; none for one that cannot.
const dlpack::Array* pointed_at(const py::object& capsule) {
  const auto* const managed = static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw py::error_already_set();
  const auto& array = managed->array;
  const bool here = array.device.type == kHostMemory || array.device.type == kPinnedMemory;
  return here && array.type.lanes == 1 && array.type.bits % 8 == 0 && is_row_major(array) ? &array : nullptr;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

Frame::Frame(const py::dict& message, const py::object& to_dlpack, const py::object& plain) {
  const auto count = message.size();
  head_.resize(sizeof(Head));
  pieces_.resize(1);
  pieces_.reserve(count + 1);
  keep_.reserve(count);
  for (const auto& [key, tensor] : message) add(key, tensor, to_dlpack, plain);
  Head head{.bytes = 0,
            .version = kFrameVersion,
            .num_tensors = static_cast<std::uint32_t>(count),
            .schema_bytes = static_cast<std::uint32_t>(head_.size() - sizeof(Head))};
  head_.resize((head_.size() + 7) / 8 * 8);
  head_.append(reinterpret_cast<const char*>(dims_.data()), dims_.size() * sizeof(std::int64_t));
  if (head_.size() > 0xFFFF'FFFF)
    throw std::length_error("ShmChannel.send: the names of the tensors take more than 4 GiB. Send fewer.");
  head.bytes = static_cast<std::uint32_t>(head_.size());
  std::memcpy(head_.data(), &head, sizeof(Head));
  pieces_[0] = std::as_bytes(std::span(head_));
}

void Frame::add(py::handle key, py::handle tensor, const py::object& to_dlpack, const py::object& plain) {
  Py_ssize_t key_bytes = 0;
  const char* const name = PyUnicode_Check(key.ptr()) ? PyUnicode_AsUTF8AndSize(key.ptr(), &key_bytes) : nullptr;
  std::string dtype;
  py::object capsule;
  const dlpack::Array* array = nullptr;
  if (name != nullptr) {
    static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");  // DLPack would hand out the values without their sign
    const auto negative = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), is_neg));
    if (negative && negative.ptr() == Py_False) {
      capsule = py::reinterpret_steal<py::object>(PyObject_CallOneArg(to_dlpack.ptr(), tensor.ptr()));
      if (capsule) array = pointed_at(capsule);
    }
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();  // plain() finds the same, and says it better
  if (array == nullptr) {
    const auto made = py::cast<py::tuple>(plain(key, tensor));
    dtype = py::cast<std::string>(made[1]);
    capsule = to_dlpack(made[0]);
    array = pointed_at(capsule);
    if (array == nullptr || name == nullptr || dtype.size() > 255) {
      throw std::invalid_argument("ShmChannel.send: a tensor cannot be laid out. Call .contiguous().");
    }
  }
  const auto width = static_cast<std::uint8_t>(array->type.bits / 8);
  const std::span<const std::int64_t> shape(array->shape, static_cast<std::size_t>(array->num_dims));
  std::uint64_t bytes = width;
  for (const auto size : shape) bytes *= static_cast<std::uint64_t>(size);  // of a tensor that exists: no overflow
  append(head_, static_cast<std::uint32_t>(key_bytes));
  append(head_, static_cast<std::uint8_t>(dtype.size()));
  append(head_, array->type.code);
  append(head_, width);
  append(head_, static_cast<std::uint8_t>(shape.size()));
  head_.append(name, static_cast<std::size_t>(key_bytes));
  head_ += dtype;
  dims_.insert(dims_.end(), shape.begin(), shape.end());
  pieces_.emplace_back(static_cast<const std::byte*>(array->data) + array->byte_offset, static_cast<std::size_t>(bytes));
  keep_.push_back(std::move(capsule));
}

Message::Message(shm::Received received) : received_(std::move(received)) {
  if (received_.bytes.size() < sizeof(Head)) damaged("the head");
  std::memcpy(&head_, received_.bytes.data(), sizeof(Head));
  dims_offset_ = (sizeof(Head) + std::uint64_t{head_.schema_bytes} + 7) / 8 * 8;
  if (head_.version != kFrameVersion || head_.bytes > received_.bytes.size() || dims_offset_ > head_.bytes) damaged("the head");
}

py::bytes Message::schema() const {
  return {reinterpret_cast<const char*>(received_.bytes.data()) + sizeof(Head), static_cast<std::size_t>(head_.schema_bytes)};
}

py::list Message::capsules(const std::string& layout) const {
  if (layout.size() != std::size_t{head_.num_tensors} * 3) damaged("the number of tensors");
  py::list made(head_.num_tensors);
  std::uint64_t dims = dims_offset_, at = shm::aligned(head_.bytes);
  const std::uint64_t all = received_.bytes.size();
  for (std::uint32_t i = 0; i < head_.num_tensors; ++i) {
    const auto code = static_cast<std::uint8_t>(layout[3 * i]), width = static_cast<std::uint8_t>(layout[3 * i + 1]);
    const auto num_dims = static_cast<std::uint8_t>(layout[3 * i + 2]);
    if (width == 0 || num_dims > kMostDims || dims + num_dims * 8ULL > head_.bytes) damaged("the number of dimensions");
    std::vector<std::int64_t> shape(num_dims);
    if (num_dims > 0) std::memcpy(shape.data(), received_.bytes.data() + dims, num_dims * 8ULL);
    dims += num_dims * 8ULL;
    const bool empty = std::ranges::find(shape, 0) != shape.end();
    std::uint64_t bytes = empty ? 0 : width;
    for (const auto size : shape) {
      if (size < 0 || (!empty && bytes > all / static_cast<std::uint64_t>(size))) damaged("a shape");
      bytes *= static_cast<std::uint64_t>(size);
    }
    if (at > all || bytes > all - at) damaged("a shape");
    const dlpack::Type type{.code = code, .bits = static_cast<std::uint8_t>(width * 8)};
    made[i] = to_dlpack(received_.bytes.data() + at, type, std::move(shape), received_.keeper);
    at += shm::aligned(bytes);
  }
  return made;
}

}  // namespace datapipes
#endif
