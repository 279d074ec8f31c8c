// shm.cpp: shared memory and its queue for Python: times in seconds, messages as dicts of tensors (frame.h), errors of
// datapipes.base.errors. Waits release the GIL, and handle signals every 100 ms.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "bindings/frame.cpp"  // one translation unit; see module.cpp
#include "bindings/numpy.h"
#include "limits/futex_hop.h"
#include "shm/memory_left.h"
#include "shm/queue.h"
#include "shm/segment.h"

namespace datapipes {

namespace {

using shm::Kind;
using shm::Queue;

Queue::Timeout timeout_of(std::optional<double> seconds) {
  constexpr double kLongest = 1e9;  // thirty years
  if (!seconds) return std::nullopt;
  return std::chrono::duration_cast<shm::Clock::duration>(std::chrono::duration<double>(std::min(*seconds, kLongest)));
}

bool send(Queue& queue, int kind, std::uint64_t epoch, const py::dict& message, const py::object& to_dlpack,
          const py::object& plain, std::optional<double> timeout) {
  queue.announce();
  const Frame frame(message, to_dlpack, plain, queue.data_bytes());
  GilRelease nogil;
  return queue.send(static_cast<Kind>(kind), epoch, frame.pieces(), timeout_of(timeout), [&] { nogil.look_at_signals(); });
}

// Returns a message as a dict, any other frame as (kind, epoch, dict).
py::object recv(Queue& queue, std::optional<double> timeout, const py::object& from_dlpack, const py::object& as_dtype) {
  const auto received = [&] {
    GilRelease nogil;
    return queue.recv(timeout_of(timeout), [&] { nogil.look_at_signals(); });
  }();
  auto message = message_of(received, from_dlpack, as_dtype);
  if (received.kind == Kind::kMessage) return message;
  return py::make_tuple(static_cast<int>(received.kind), received.epoch, std::move(message));
}

py::dict stats_of(Queue& queue) {
  const auto stats = without_gil([&] { return queue.stats(); });
  const auto seconds = [](std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; };
  py::dict shown;
  shown["messages"] = stats.counters.messages;
  shown["bytes"] = stats.counters.bytes;
  shown["waits"] = stats.counters.send_waits + stats.counters.receive_waits;
  shown["send_waits"] = stats.counters.send_waits;
  shown["send_wait_s"] = seconds(stats.counters.send_wait_ns);
  shown["recv_waits"] = stats.counters.receive_waits;
  shown["recv_wait_s"] = seconds(stats.counters.receive_wait_ns);
  shown["held"] = stats.room.held;
  shown["held_bytes"] = stats.room.held_bytes;
  shown["unread"] = stats.unread;
  shown["used_bytes"] = stats.room.used_bytes;
  shown["copied_out"] = stats.counters.copied_out;
  shown["dropped"] = stats.counters.dropped;
  shown["deaths"] = stats.deaths;
  return shown;
}

// Raises datapipes.base.errors.`name`(*arguments).
template <class... Arguments>
void raise(const char* name, const Arguments&... arguments) {
  const py::object type = py::module_::import("datapipes.base.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(arguments...).ptr());
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const shm::TimedOut& timed_out) {
    raise("QueueTimeoutError", timed_out.what());
  } catch (const shm::Closed& closed) {
    raise("ChannelClosed", closed.what());
  } catch (const shm::PeersDied& died) {
    raise("PeerDied", died.what(), died.pids);
  } catch (const shm::Damaged& damaged) {
    raise("ChannelDamaged", damaged.what());
  } catch (const shm::NoMemory& none) {
    PyErr_SetString(PyExc_MemoryError, none.what());
  } catch (const std::system_error& refused) {
    errno = refused.code().value();
    PyErr_SetObject(PyExc_OSError, py::make_tuple(refused.code().value(), refused.what()).ptr());
  }
}

}  // namespace

void bind_shm(py::module_& m) {
  py::register_local_exception_translator(translate);
  py::class_<Queue, std::shared_ptr<Queue>>(m, "ShmQueue")
      .def_static("create", &Queue::create, py::call_guard<GilRelease>(), py::arg("capacity"), py::arg("data_bytes"))
      .def_static("attach", &Queue::attach, py::call_guard<GilRelease>(), py::arg("descriptor"))
      .def("send", &send, py::arg("kind"), py::arg("epoch"), py::arg("message"), py::arg("to_dlpack"), py::arg("plain"),
           py::arg("timeout"))
      .def("recv", &recv, py::arg("timeout"), py::arg("from_dlpack"), py::arg("as_dtype"))
      .def("reset", &Queue::reset, py::call_guard<GilRelease>(), py::arg("epoch"))
      .def("close", &Queue::close, py::call_guard<GilRelease>())
      .def("leave", &Queue::leave, py::call_guard<GilRelease>(), py::arg("by_exit"))
      .def("join", &Queue::join, py::call_guard<GilRelease>(), py::arg("inherited"))
      .def("size", &Queue::size, py::call_guard<GilRelease>())
      .def("stats", &stats_of)
      .def_property_readonly("epoch", py::cpp_function(&Queue::epoch, py::call_guard<GilRelease>()))
      .def_property_readonly("capacity", &Queue::capacity)
      .def_property_readonly("data_bytes", &Queue::data_bytes)
      .def_property_readonly("descriptor", &Queue::descriptor)
      .def_property_readonly("memory",
                             [](const Queue& queue) {
                               return py::make_tuple(reinterpret_cast<std::uintptr_t>(queue.memory().data()),
                                                     queue.memory().size());
                             })
      .def("release_in_two_steps", &Queue::release_in_two_steps, py::arg("on"))
      .def("dropped_slots", &Queue::dropped_slots)
      .def("let_go", [](Queue& queue, const std::vector<std::uint32_t>& slots) { queue.let_go(slots); }, py::arg("slots"));
  py::class_<shm::Segment>(m, "SharedMemory", py::buffer_protocol())
      .def_static("create", &shm::Segment::create, py::call_guard<GilRelease>(), py::arg("num_bytes"), py::arg("who"),
                  py::arg("huge_pages") = false)
      .def_static("attach", &shm::Segment::attach, py::call_guard<GilRelease>(), py::arg("descriptor"))
      .def_buffer([](const shm::Segment& memory) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(memory.data()), static_cast<py::ssize_t>(memory.size()));
      })
      .def("__len__", &shm::Segment::size)
      .def_property_readonly("descriptor", &shm::Segment::descriptor)
      .def("use_huge_pages", &shm::Segment::use_huge_pages, py::call_guard<GilRelease>());
  const auto bytes_of = [](const py::buffer& memory) {
    const auto asked = memory.request(true);
    return std::span(static_cast<std::byte*>(asked.ptr), static_cast<std::size_t>(asked.size * asked.itemsize));
  };
  m.def(
      "send_futex_hops",
      [=](const py::buffer& word, std::int64_t hops, double pace_s) {
        const auto bytes = bytes_of(word);
        const GilRelease nogil;
        return send_futex_hops(bytes, hops, pace_s);
      },
      py::arg("word"), py::arg("hops"), py::arg("pace_s"));
  m.def(
      "receive_futex_hops",
      [=](const py::buffer& word, std::int64_t hops, std::uint32_t had) {
        const auto bytes = bytes_of(word);
        const GilRelease nogil;
        return receive_futex_hops(bytes, hops, had);
      },
      py::arg("word"), py::arg("hops"), py::arg("had") = 0);
  m.def(
      "memory_left",
      [](const std::string& root) {
        const auto left = shm::memory_left(root);
        return py::make_tuple(left.bytes, left.limit);
      },
      py::arg("root") = "");
}

}  // namespace datapipes
