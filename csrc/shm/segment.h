// segment.h: anonymous shared memory (memfd) with all pages reserved, passed on by its descriptor. It is sealed, so no
// process can shrink it while it is mapped. It has no name to clean up, and is freed with the last process that has it
// open or mapped.
//   create(bytes, who, huge_pages)  makes a segment. `who` ("ShmChannel" or another) begins its errors and selects the
//                  name of the memory. With `huge_pages` it uses reserved huge pages of the system, if enough are free:
//                  then it may be larger than `bytes`, does not support write(2), and takes nothing of the memory left.
//                  Otherwise it uses ordinary shared pages, huge if the system's shmem_enabled allows. Throws NoMemory
//                  before anything is reserved if too little memory is left (memory_left.h), and std::system_error if
//                  the system refuses (EMFILE, ENOMEM ...). Leaves nothing behind when it throws.
//   attach(fd)     maps a segment of another process. Takes ownership of the descriptor, even when it throws.
//   use_huge_pages()  asks the system to move the content into huge pages, for all processes that map them, so that
//                  random reads miss the TLB less. Takes seconds for gigabytes; the memory stays usable meanwhile. Does
//                  nothing before Linux 6.1 or when memory is short.
// The segment is mapped at an address that suits huge pages, and advised to use them, in each process.
#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>

namespace datapipes::shm {

struct NoMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Segment {
 public:
  static Segment create(std::size_t bytes, const std::string& who = "ShmChannel", bool huge_pages = false);
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
  static std::optional<Segment> of_reserved_pages(std::size_t bytes);
  int fill_and_seal() const;  // 0, or the error
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace datapipes::shm
