// segment.h: anonymous shared memory (memfd) with all its pages reserved, known by a descriptor. Nobody can cut it while it is
// mapped, it has no name to clean up, and it goes with the last process that has it open or mapped.
//   create(bytes, who)  for "ShmChannel" or another, whose name is that of the memory and begins its errors; throws NoMemory
//   where less is left than that (memory_left.h), before anything is reserved, and std::system_error
//                  where the system refuses (EMFILE, ENOMEM ...); leaves nothing behind
//   attach(fd)     maps what another process made; takes the descriptor over, also when it throws
//   use_huge_pages()  asks the system to put what is there into huge pages, in all processes that have it mapped: random reads
//                  then miss the TLB less. Takes seconds for gigabytes, in which it can be used; does nothing where the system
//                  (before Linux 6.1, or short of memory) cannot.
// It is mapped at an address that suits huge pages.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace datapipes::shm {

struct NoMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Segment {
 public:
  static Segment create(std::size_t bytes, const std::string& who = "ShmChannel");
  static Segment attach(int fd);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  int descriptor() const { return fd_; }
  void use_huge_pages() const;

 private:
  Segment(int fd, std::size_t bytes);  // maps
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace datapipes::shm
