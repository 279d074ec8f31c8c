// test_per_process.cpp: a child that is forked at any moment has objects of its own.
#include <sys/wait.h>
#include <unistd.h>

#include "common/per_process.h"
#include "tests/check.h"

namespace {

struct Owned {
  pid_t made_by = getpid();
};

bool forks_at_registration = false;
int child_status = 0;

}  // namespace

extern "C" {
int __register_atfork(void (*)(), void (*)(), void (*)(), void*) noexcept;

// Replaces glibc's function, so that the test can fork at the last moment before the fork handler is registered.
int pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)()) noexcept {
  if (forks_at_registration) {
    forks_at_registration = false;
    const pid_t forked = fork();
    if (forked == 0) _exit(datapipes::per_process<Owned>().made_by == getpid() ? 0 : 1);
    waitpid(forked, &child_status, 0);
  }
  return __register_atfork(prepare, parent, child, nullptr);
}
}

namespace datapipes {
namespace {

void a_child_has_an_object_of_its_own() {
  forks_at_registration = true;
  CHECK(per_process<Owned>().made_by == getpid());
  CHECK(&per_process<Owned>() == &per_process<Owned>());
  forks_at_registration = false;
  CHECK(child_status == 0);
  const pid_t child = fork();
  if (child == 0) _exit(per_process<Owned>().made_by == getpid() ? 0 : 1);
  waitpid(child, &child_status, 0);
  CHECK(child_status == 0);
}

}  // namespace

FORKING_SUITE(test_per_process) { RUN(a_child_has_an_object_of_its_own); }

}  // namespace datapipes
