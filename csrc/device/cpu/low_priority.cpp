#include "device/cpu/low_priority.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/child_processes.h"
#include "device/cpu/cpu_load.h"

namespace torchshare {
namespace {

constexpr int kNiceness = 10;

/// Sets the scheduling policy of one thread; 0: the calling thread.
bool set_policy(int thread, int policy, const sched_param& param = {}) {
  return sched_setscheduler(thread, policy, &param) == 0;
}

bool set_niceness(int thread, int niceness) {
  return setpriority(PRIO_PROCESS, static_cast<id_t>(thread), niceness) == 0;  // on Linux, of that thread alone
}

int niceness(int thread) {
  return getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
}

/// The kernel's ids of the calling thread's OpenMP workers, which it starts if there are none: they inherit the current
/// priority, and the thread may be raised later. They belong to torch's OpenMP library, so torch's own loop finds them.
std::vector<int> openmp_workers() {
  const int threads = at::get_num_threads();
  std::vector<int> workers(static_cast<std::size_t>(threads) - 1);
  if (workers.empty()) {
    return workers;
  }
  at::Tensor elements = at::empty({threads}, at::kByte);
  at::TensorIterator each = at::TensorIterator::nullary_op(elements);
  each.for_each(
      [&](char**, const std::int64_t*, std::int64_t, std::int64_t) {
        if (const int number = at::get_thread_num(); number > 0) {
          workers[static_cast<std::size_t>(number) - 1] = gettid();
        }
      },
      1);
  std::erase(workers, 0);  // inside a parallel region, the calling thread works alone
  return workers;
}

/// The kernel's ids of this process's threads, as text.
std::set<std::string> threads_of_process() {
  std::set<std::string> threads;
  for_each_thread("self", [&](const std::string& thread) { threads.insert(thread); });
  return threads;
}

constexpr int kForGood = 1 << 16;  // never lowered again

}  // namespace

bool LowPriority::lower_thread(int thread) const {
  return how_ == DevicePriority::kNice ? set_niceness(thread, former_nice_ + kNiceness)
                                       : set_policy(thread, SCHED_IDLE);
}

bool LowPriority::restore_thread(int thread) const {
  return how_ == DevicePriority::kNice ? set_niceness(thread, former_nice_)
                                       : set_policy(thread, former_policy_, former_param_);
}

bool LowPriority::is_low(int thread) const {
  return how_ == DevicePriority::kNice ? niceness(thread) == former_nice_ + kNiceness
                                       : sched_getscheduler(thread) == SCHED_IDLE;
}

bool LowPriority::is_ordinary(int thread) const {
  return sched_getscheduler(thread) == former_policy_ && niceness(thread) == former_nice_;
}

void LowPriority::change_one(int thread, bool raise) const {
  raise ? restore_thread(thread) : lower_thread(thread);
}

/// Raises or lowers what the thread has started: workers, which have its name unless they had been started before it
/// was lent, and the processes that it or they have started, unless they have chosen a priority themselves.
void LowPriority::change_started(int thread, bool raise) const noexcept {
  const auto change_child = [&](int child) {
    if (raise ? is_low(child) : is_ordinary(child)) {
      change_one(child, raise);
    }
  };
  try {
    for (const int worker : workers_) {
      change_one(worker, raise);
    }
    const std::string own = std::to_string(thread);
    const std::string name = name_of_thread("self", own);
    for_each_thread("self", [&](const std::string& text) {
      if (name_of_thread("self", text) != name) {
        return;
      }
      if (text != own) {
        change_one(std::stoi(text), raise);
      }
      for_each_thread_of_children(text, change_child);
    });
    for_each_thread_of_orphans(name, change_child);
  } catch (const std::bad_alloc&) {
    // The rest keeps its priority.
  }
}

/// A thread that is lent may have had workers before, of another name and priority.
void LowPriority::lend() {
  workers_ = openmp_workers();
  threads_ = threads_of_process();
  pthread_getname_np(pthread_self(), former_name_.data(), former_name_.size());
  pthread_setname_np(pthread_self(), fmt::format("ts-{}", gettid()).c_str());
  if (raises_.load() == 0) {
    for (const int worker : workers_) {
      lower_thread(worker);
    }
  }
}

/// What the thread has started meanwhile outlives the call.
void LowPriority::take_back() {
  for (const int worker : workers_) {
    restore_thread(worker);
  }
  try {
    const auto now = threads_of_process();
    const bool started = !std::includes(threads_.begin(), threads_.end(), now.begin(), now.end());
    if (started || has_children(std::to_string(gettid()))) {
      change_started(gettid(), true);
    }
  } catch (const std::bad_alloc&) {
    // What it has started keeps its priority.
  }
  workers_.clear();
  pthread_setname_np(pthread_self(), former_name_.data());
}

void LowPriority::enter() {
  if (how_ == DevicePriority::kAuto) {
    how_ = others_are_busy() ? DevicePriority::kNice : DevicePriority::kIdle;
  }
  {
    std::lock_guard lock(mutex_);
    former_nice_ = niceness(0);
    former_policy_ = sched_getscheduler(0);
    sched_getparam(0, &former_param_);
    pthread_getcpuclockid(pthread_self(), &clock_);
    if (lent_) {
      lend();
    }
    thread_.store(gettid(), std::memory_order_release);
  }
  if (!lowers()) {
    return;
  }
  if (!apply(0)) {  // without the lock, as in `change`
    TORCH_WARN("torchshare: cannot lower the priority of this thread (", std::strerror(errno), "); it keeps it");
  }
  if (!lent_) {
    openmp_workers();
  }
}

void LowPriority::leave() {
  if (lowers()) {
    restore_thread(0);  // fails where may_raise_priority() is false; the thread ends anyway
  }
  std::lock_guard lock(mutex_);
  thread_.store(0, std::memory_order_release);
  if (lowers()) {
    restore_thread(0);  // another thread may have lowered it before this one had the lock
  }
  if (lent_) {
    take_back();
  }
}

void LowPriority::change(int raises) {
  if (!lowers() || !may_raise_priority()) {
    return;
  }
  if (thread_.load(std::memory_order_acquire) == gettid()) {
    if (raises < 0 && raises_.load() + raises == 0) {
      std::lock_guard lock(mutex_);
      change_started(gettid(), false);  // threads inherit the priority that their starter has at that moment
    }
    raises_ += raises;
    apply(0);  // without the lock, which it would hold while it has idle priority
    return;
  }
  std::lock_guard lock(mutex_);
  raises_ += raises;
  if (const int thread = thread_.load(std::memory_order_acquire); thread != 0) {
    apply(thread);
    if (raises < 0 && raises_.load() == 0) {
      change_started(thread, false);
    }
  }
}

/// Applies the priority given by the number of raises, and again if that number has changed meanwhile.
bool LowPriority::apply(int thread) {
  bool raised = false;
  bool succeeds = false;
  do {
    raised = raises_.load() > 0;
    succeeds = raised ? restore_thread(thread) : lower_thread(thread);
  } while (raised != (raises_.load() > 0));
  return succeeds;
}

void LowPriority::raise() {
  change(1);
}

void LowPriority::lower() {
  change(-1);
}

void LowPriority::set_unopposed(bool unopposed) {
  unopposed ? raise_with_started(1) : lower();
}

void LowPriority::raise_for_good() {
  raise_with_started(kForGood);
}

void LowPriority::raise_with_started(int raises) {
  if (!lowers() || !may_raise_priority()) {
    return;  // without the lock, which the thread may hold while it leaves with idle priority
  }
  change(raises);
  std::lock_guard lock(mutex_);
  if (const int thread = thread_.load(std::memory_order_acquire); thread != 0) {
    change_started(thread, true);
  }
}

std::optional<std::chrono::nanoseconds> LowPriority::used() const {
  timespec time{};
  if (thread_.load(std::memory_order_acquire) == 0 || clock_gettime(clock_, &time) != 0) {
    return std::nullopt;
  }
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::optional<std::chrono::nanoseconds> LowPriority::waited() const noexcept {
  const int thread = thread_.load(std::memory_order_acquire);
  if (thread == 0) {
    return std::nullopt;
  }
  try {
    const auto times = scheduler_times(std::to_string(thread));
    return times ? std::optional(times->waited) : std::nullopt;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

bool may_raise_priority() {
  static const bool may = [] {
    bool succeeds = false;
    std::thread([&] {
      const int former = sched_getscheduler(0);
      succeeds = set_policy(0, SCHED_IDLE) && set_policy(0, former);
    }).join();
    return succeeds;
  }();
  return may;
}

}  // namespace torchshare
