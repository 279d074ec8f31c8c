// step.h: names the places between two writes to shared memory, so that a test can end the process at each of them. In the
// product DATAPIPES_SHM_STEP is nothing.
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
