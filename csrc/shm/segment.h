// segment.h: anonymous shared memory (memfd) with all its pages reserved, known by a descriptor. Nobody can cut it while it is
// mapped, it has no name to clean up, and it goes with the last process that has it open or mapped.
//   create(bytes)  throws NoMemory where less is left than that (memory_left.h), before anything is reserved, and
//   std::system_error
//                  where the system refuses (EMFILE, ENOMEM ...); leaves nothing behind
//   attach(fd)     maps what another process made; takes the descriptor over, also when it throws
#pragma once

#include <cstddef>
#include <stdexcept>

namespace datapipes::shm {

struct NoMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Segment {
 public:
  static Segment create(std::size_t bytes);
  static Segment attach(int fd);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  int descriptor() const { return fd_; }

 private:
  Segment(int fd, std::size_t bytes);  // maps
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace datapipes::shm
