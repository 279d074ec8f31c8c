#include "bindings/frame.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "bindings/dlpack.h"

namespace datapipes {

namespace py = pybind11;

namespace {

constexpr std::int32_t kHostMemory = 1, kPinnedMemory = 3;
constexpr std::size_t kMostDims = 64;  // the most that the operations of torch allow; shm_channel.py has the same number
constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void damaged(const char* what) {
  throw std::invalid_argument(std::string("ShmChannel.recv: ") + what +
                              " of the message makes no sense. Use the same version of datapipes in all processes.");
}

using Shape = std::span<const std::int64_t>;

bool is_empty(Shape shape) { return std::ranges::find(shape, 0) != shape.end(); }

// The bytes of a tensor; none if a message cannot carry it: too many dimensions, or more than `most` bytes. In an empty tensor
// sizes of 0 count as 1, so that its strides do not overflow.
std::optional<std::uint64_t> bytes_of(const dlpack::Type& type, Shape shape, std::uint64_t most) {
  if (shape.size() > kMostDims) return std::nullopt;
  const bool empty = is_empty(shape);
  if (empty) most = kMostBytes;
  std::uint64_t bytes = type.bits / 8;
  for (const auto size : shape) {
    const auto times = static_cast<std::uint64_t>(size == 0 ? 1 : size);
    if (size < 0 || __builtin_mul_overflow(bytes, times, &bytes)) return std::nullopt;
  }
  if (bytes > most) return std::nullopt;
  return empty ? 0 : bytes;
}

Shape shape_of(const dlpack::Array& array) { return {array.shape, static_cast<std::size_t>(array.num_dims)}; }

// `array`: not empty, and its size does not overflow
bool is_row_major(const dlpack::Array& array) {
  if (array.strides == nullptr) return true;
  std::int64_t wanted = 1;
  for (auto d = array.num_dims; d-- > 0;) {
    if (array.shape[d] != 1 && array.strides[d] != wanted) return false;
    wanted *= array.shape[d];
  }
  return true;
}

// Whether DLPack names the dtype; shm_channel.py turns a tensor of any other dtype into one of these.
bool is_known(const dlpack::Type& type) {
  switch (type.code) {
    case dlpack::kInt:
      return type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64;
    case dlpack::kFloat:
      return type.bits == 16 || type.bits == 32 || type.bits == 64;
    case dlpack::kComplex:
      return type.bits == 64 || type.bits == 128;
    case dlpack::kUnsigned:
    case dlpack::kBool:
      return type.bits == 8;
    case dlpack::kBfloat:
      return type.bits == 16;
    default:
      return false;
  }
}

struct Pointed {
  const dlpack::Array* array = nullptr;
  std::uint64_t bytes = 0;
};

// Returns the DLPack array of a tensor that can be sent from its own memory; no array for any other tensor.
Pointed pointed_at(const py::object& capsule) {
  const auto* const managed = static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw py::error_already_set();
  const auto& array = managed->array;
  const bool here = array.device.type == kHostMemory || array.device.type == kPinnedMemory;
  if (!here || array.type.lanes != 1 || !is_known(array.type) || array.num_dims < 0) return {};
  const auto bytes = bytes_of(array.type, shape_of(array), kMostBytes);
  if (!bytes || (*bytes > 0 && (array.data == nullptr || !is_row_major(array)))) return {};
  return {&array, *bytes};
}

// Whether a tensor whose values are integers of 8 bits has a dtype of fewer bits. DLPack says int8 of torch.int1 to
// torch.int7, and uint8 of torch.uint1 to torch.uint7.
bool has_fewer_bits(py::handle tensor) {
  static PyObject* const dtype = PyUnicode_InternFromString("dtype");
  static PyObject* const torch = PyImport_ImportModule("torch");
  static PyObject* const int8 = torch == nullptr ? nullptr : PyObject_GetAttrString(torch, "int8");
  static PyObject* const uint8 = torch == nullptr ? nullptr : PyObject_GetAttrString(torch, "uint8");
  const auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), dtype));
  return !found || (found.ptr() != int8 && found.ptr() != uint8);
}

bool says_no(py::handle tensor, PyObject* method) {
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), method));
  return answer && answer.ptr() == Py_False;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

Frame::Frame(const py::dict& message, const py::object& to_dlpack, const py::object& plain, std::uint64_t most_bytes) {
  // A copy: plain() may let other threads run, and they may change the caller's dict.
  const auto mine = py::reinterpret_steal<py::dict>(PyDict_Copy(message.ptr()));
  if (!mine) throw py::error_already_set();
  const auto count = mine.size();
  head_.resize(sizeof(Head));
  pieces_.resize(1);
  pieces_.reserve(count + 1);
  keep_.reserve(count);
  for (const auto& [key, tensor] : mine) add(key, tensor, to_dlpack, plain, most_bytes);
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

void Frame::add(py::handle key, py::handle tensor, const py::object& to_dlpack, const py::object& plain,
                std::uint64_t most_bytes) {
  Py_ssize_t key_bytes = 0;
  const char* const name = PyUnicode_Check(key.ptr()) ? PyUnicode_AsUTF8AndSize(key.ptr(), &key_bytes) : nullptr;
  std::string dtype;
  py::object capsule;
  Pointed found;
  if (name != nullptr) {
    // DLPack has no negative or conjugate bit: it would give the values without the sign, or not conjugated.
    static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
    static PyObject* const is_conj = PyUnicode_InternFromString("is_conj");
    if (says_no(tensor, is_neg)) {
      capsule = py::reinterpret_steal<py::object>(PyObject_CallOneArg(to_dlpack.ptr(), tensor.ptr()));
      if (capsule) found = pointed_at(capsule);
      if (found.array != nullptr) {
        const auto& type = found.array->type;
        const bool other = type.code == dlpack::kComplex
                               ? !says_no(tensor, is_conj)
                               : type.bits == 8 && type.code <= dlpack::kUnsigned && has_fewer_bits(tensor);
        if (other) found = {};
      }
    }
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();  // plain() raises the same error with a better text
  if (found.array == nullptr) {
    const auto made = py::cast<py::tuple>(plain(key, tensor, most_bytes));
    dtype = py::cast<std::string>(made[1]);
    capsule = to_dlpack(made[0]);
    found = pointed_at(capsule);
    if (found.array == nullptr || name == nullptr || dtype.size() > 255) {
      throw std::invalid_argument("ShmChannel.send: a tensor cannot be laid out. Call .contiguous().");
    }
  }
  const auto& array = *found.array;
  const auto width = static_cast<std::uint8_t>(array.type.bits / 8);
  const auto shape = shape_of(array);
  append(head_, static_cast<std::uint32_t>(key_bytes));
  append(head_, static_cast<std::uint8_t>(dtype.size()));
  append(head_, array.type.code);
  append(head_, width);
  append(head_, static_cast<std::uint8_t>(shape.size()));
  head_.append(name, static_cast<std::size_t>(key_bytes));
  head_ += dtype;
  dims_.insert(dims_.end(), shape.begin(), shape.end());
  pieces_.emplace_back(static_cast<const std::byte*>(array.data) + array.byte_offset, static_cast<std::size_t>(found.bytes));
  keep_.push_back(std::move(capsule));
}

namespace {

struct Entry {
  py::object key;
  dlpack::Type type;
  std::uint8_t num_dims;
  std::string dtype;  // its name, if DLPack has no such dtype
};
using Schema = std::vector<Entry>;

Schema parse(std::string_view schema) {
  Schema parsed;
  while (!schema.empty()) {
    std::uint32_t key_bytes = 0;
    std::uint8_t rest[4];  // bytes of the dtype's name, DLPack's code, bytes of a value, number of dimensions
    if (schema.size() < sizeof key_bytes + sizeof rest) damaged("a name");
    std::memcpy(&key_bytes, schema.data(), sizeof key_bytes);
    std::memcpy(rest, schema.data() + sizeof key_bytes, sizeof rest);
    schema.remove_prefix(sizeof key_bytes + sizeof rest);
    const dlpack::Type type{.code = rest[1], .bits = static_cast<std::uint8_t>(rest[2] > 16 ? 0 : rest[2] * 8)};
    if (schema.size() < std::uint64_t{key_bytes} + rest[0] || !is_known(type) || rest[3] > kMostDims) damaged("a name");
    const auto dtype = schema.substr(key_bytes, rest[0]);
    if (!std::ranges::all_of(dtype, [](char c) { return c > ' ' && c < 0x7F; })) damaged("a dtype");
    PyObject* const key = PyUnicode_DecodeUTF8(schema.data(), static_cast<Py_ssize_t>(key_bytes), nullptr);
    if (key == nullptr) {
      PyErr_Clear();
      damaged("a name");
    }
    parsed.push_back(
        {.key = py::reinterpret_steal<py::object>(key), .type = type, .num_dims = rest[3], .dtype = std::string(dtype)});
    schema.remove_prefix(key_bytes + rest[0]);
  }
  return parsed;
}

// Needs the GIL. A few schemas come again and again, so each is parsed once; the cache is bounded if there are many.
std::shared_ptr<const Schema> parsed_once(std::string_view schema) {
  constexpr std::size_t kMost = 256, kLongest = 1 << 16;
  static auto* const known = new std::unordered_map<std::string, std::shared_ptr<const Schema>>();  // outlives the interpreter
  std::string text(schema);  // the only read of shared memory
  if (const auto found = known->find(text); found != known->end()) return found->second;
  auto parsed = std::make_shared<const Schema>(parse(text));
  if (known->size() >= kMost) known->clear();
  if (text.size() <= kLongest) known->emplace(std::move(text), parsed);
  return parsed;
}

}  // namespace

py::dict message_of(const shm::Received& received, const py::object& from_dlpack, const py::object& as_dtype) {
  const auto all = static_cast<std::uint64_t>(received.bytes.size());
  std::byte* const data = received.bytes.data();
  Head head{};
  if (all < sizeof(Head)) damaged("the head");
  std::memcpy(&head, data, sizeof(Head));
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must not read it again after the checks
  std::uint64_t dims = (sizeof(Head) + std::uint64_t{head.schema_bytes} + 7) / 8 * 8;
  if (head.version != kFrameVersion || head.bytes > all || dims > head.bytes) damaged("the head");
  const auto schema = parsed_once({reinterpret_cast<const char*>(data) + sizeof(Head), head.schema_bytes});
  if (schema->size() != head.num_tensors) damaged("the number of tensors");
  py::dict message;
  std::uint64_t at = shm::aligned(head.bytes);
  for (const auto& entry : *schema) {
    if (dims + entry.num_dims * 8ULL > head.bytes) damaged("the number of dimensions");
    std::vector<std::int64_t> shape(entry.num_dims);
    if (entry.num_dims > 0) std::memcpy(shape.data(), data + dims, entry.num_dims * 8ULL);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    dims += entry.num_dims * 8ULL;
    if (at > all) damaged("a shape");
    const auto bytes = bytes_of(entry.type, shape, all - at);
    if (!bytes) damaged("a shape");
    const py::object capsule = to_dlpack(data + at, entry.type, std::move(shape), received.keeper);
    auto tensor = py::reinterpret_steal<py::object>(PyObject_CallOneArg(from_dlpack.ptr(), capsule.ptr()));
    if (!tensor) throw py::error_already_set();
    if (!entry.dtype.empty()) tensor = as_dtype(tensor, entry.dtype);
    if (PyDict_SetItem(message.ptr(), entry.key.ptr(), tensor.ptr()) != 0) throw py::error_already_set();
    at += shm::aligned(*bytes);
  }
  return message;
}

}  // namespace datapipes
