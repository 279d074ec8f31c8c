// step.h: names each place between two writes to shared memory, so that a test can kill the process there. Without
// DATAPIPES_SHM_STEPS the macro expands to nothing.
#pragma once

#if defined(DATAPIPES_SHM_STEPS)
namespace datapipes::shm {
inline void (*at_step)(const char* name) = nullptr;
}
#define DATAPIPES_SHM_STEP(name)                                               \
  do {                                                                         \
    if (::datapipes::shm::at_step != nullptr) ::datapipes::shm::at_step(name); \
  } while (false)
#else
#define DATAPIPES_SHM_STEP(name) ((void)0)
#endif
