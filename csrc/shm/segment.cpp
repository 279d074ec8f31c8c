#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "shm/memory_left.h"

namespace datapipes::shm {

namespace {

constexpr std::size_t kSpare = 16;  // 1/16 of the memory left is not taken, for everything else on the machine

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHuge = std::size_t{1} << 21;

[[noreturn]] void fail(int error, const std::string& what) { throw std::system_error(error, std::generic_category(), what); }

// Maps `bytes` of a file at an address that is a multiple of kHuge. Returns nullptr and sets errno if the system
// refuses.
void* map_aligned(int fd, std::size_t bytes) {
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
  void* const room = mmap(nullptr, pages + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  const auto at = (begin + kHuge - 1) / kHuge * kHuge;
  void* const mapped = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  const int error = errno;
  if (mapped == MAP_FAILED) {
    munmap(room, pages + kHuge);
    errno = error;
    return nullptr;
  }
  if (at > begin) munmap(room, at - begin);
  munmap(reinterpret_cast<void*>(at + pages), begin + kHuge - at);
  return mapped;
}

}  // namespace

Segment::Segment(int fd, std::size_t bytes) : fd_(fd), bytes_(bytes) {
  void* const mapped = map_aligned(fd, bytes);
  if (mapped == nullptr) {
    const int error = errno;
    close(fd);
    fail(error, "datapipes: mapping " + std::to_string(bytes) + " bytes of shared memory");
  }
  data_ = static_cast<std::byte*>(mapped);
  madvise(data_, bytes_, MADV_HUGEPAGE);
}

void Segment::use_huge_pages() const {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  constexpr int kTries = 8;
  // The call skips pages that another process is mapping, and then returns EAGAIN.
  for (int i = 0; i < kTries && madvise(data_, bytes_, kCollapse) != 0 && errno == EAGAIN; ++i) {
  }
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

int Segment::fill_and_seal() const {
  int error = 0;
  do {
    error = posix_fallocate(fd_, 0, static_cast<off_t>(bytes_));
  } while (error == EINTR);
  if (error == 0 && fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) error = errno;
  return error;
}

// Mapping reserves the pages, or fails. All of them are taken here, so no later access can lack one (SIGBUS).
std::optional<Segment> Segment::of_reserved_pages(std::size_t bytes) {
  constexpr unsigned kHuge2MiB = 21U << 26;  // MFD_HUGE_2MB, which some headers lack
  const std::size_t whole = (bytes + kHuge - 1) / kHuge * kHuge;
  const int fd = memfd_create("datapipes", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | kHuge2MiB);
  if (fd < 0) return std::nullopt;
  if (ftruncate(fd, static_cast<off_t>(whole)) != 0) {
    close(fd);
    return std::nullopt;
  }
  try {
    Segment made(fd, whole);
    if (made.fill_and_seal() == 0) return made;
  } catch (const std::system_error&) {  // too few are free
  }
  return std::nullopt;
}

Segment Segment::create(std::size_t bytes, const std::string& who, bool huge_pages) {
  if (huge_pages) {
    if (auto made = of_reserved_pages(bytes)) return std::move(*made);
  }
  const auto left = memory_left();
  if (bytes > left.bytes - left.bytes / kSpare) {
    throw NoMemory(who + ": " + std::to_string(bytes) + " bytes of shared memory were asked for, " + std::to_string(left.bytes) +
                   " are left by " + left.limit + ". Ask for less (a channel: a smaller shm_size), or free memory.");
  }
  const int fd = memfd_create(who == "ShmChannel" ? "datapipes-channel" : "datapipes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(errno, who + ": making anonymous shared memory");
  const std::string reserving = who + ": reserving " + std::to_string(bytes) + " bytes of shared memory";
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    fail(error, reserving);
  }
  Segment made(fd, bytes);
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE: only a write in an advised mapping takes huge pages
  if (huge_pages) madvise(made.data_, bytes, kPopulateWrite);
  // Reserve all pages now, so that a shortage is an error here. Otherwise the first access to a missing page would be a
  // SIGBUS.
  if (const int error = made.fill_and_seal(); error != 0) fail(error, reserving);
  return made;
}

Segment Segment::attach(int fd) {
  struct stat found {};
  if (fstat(fd, &found) != 0) {
    const int error = errno;
    close(fd);
    fail(error, "ShmChannel: attaching to descriptor " + std::to_string(fd));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || found.st_size <= 0) {
    close(fd);
    throw std::invalid_argument("ShmChannel: descriptor " + std::to_string(fd) +
                                " is not the memory of a channel. Pass the ShmChannel itself to the process.");
  }
  return {fd, static_cast<std::size_t>(found.st_size)};
}

}  // namespace datapipes::shm
