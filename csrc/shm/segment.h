// segment.h: anonymous shared memory (memfd) with all pages reserved, passed on by its descriptor. It is sealed, so
// nobody can shrink it while it is mapped. It has no name to clean up; it is gone with the last process that has it
// open or mapped.
//   create(bytes, who)  makes a segment. `who` ("ShmChannel" or another) begins its errors and selects the name of the
//                  memory. Throws NoMemory before anything is reserved if too little memory is left (memory_left.h),
//                  and std::system_error if the system refuses (EMFILE, ENOMEM ...). Leaves nothing behind when it
//                  throws.
//   attach(fd)     maps a segment of another process. Takes the descriptor over, also when it throws.
//   use_huge_pages()  asks the system to move the content into huge pages, for all processes that map them, so that
//                  random reads miss the TLB less. Takes seconds for gigabytes; the memory stays usable meanwhile. Does
//                  nothing before Linux 6.1 or when memory is short.
// The segment is mapped at an address that suits huge pages.
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
