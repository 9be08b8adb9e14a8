#include "runtime/job_threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace torchshare {
namespace {

constexpr std::size_t kMaxThreadName = 15;  // Linux

/// For example "ts3-resnet". Unique in this process: workers inherit it, see LowPriority::raise_for_good.
std::string thread_name(const std::string& job) {
  static std::atomic<int> threads = 0;
  return fmt::format("ts{}-{}", ++threads, job).substr(0, kMaxThreadName);
}

}  // namespace

void JobThreads::add(std::shared_ptr<RuntimeJob> job, Job::Body body) {
  std::lock_guard lock(mutex_);
  members_.push_back({std::move(job), std::move(body), {}});
}

void JobThreads::start(std::shared_ptr<RuntimeJob> job, Job::Body body) {
  std::lock_guard lock(mutex_);
  members_.push_back({std::move(job), std::move(body), {}});
  try {
    launch(members_.back());
  } catch (...) {
    members_.pop_back();
    throw;
  }
}

void JobThreads::start_all() {
  std::lock_guard lock(mutex_);
  for (Member& member : members_) {
    if (!member.thread.joinable()) {
      launch(member);
    }
  }
}

void JobThreads::launch(Member& member) {
  const std::string& job = member.job->spec().name;
  const auto body = std::make_shared<Job::Body>(std::move(member.body));
  try {
    member.thread = std::thread([job = member.job, body, name = thread_name(job), all = shared_from_this()] {
      pthread_setname_np(pthread_self(), name.c_str());
      job->run(std::move(*body));
      all->leave(*job);
    });
  } catch (const std::exception& error) {
    member.body = std::move(*body);
    throw std::runtime_error(fmt::format("job '{}': its thread cannot be created: {}", job, error.what()));
  }
}

void JobThreads::cancel_all() {
  std::lock_guard lock(mutex_);
  for (const Member& member : members_) {
    member.job->cancel();
  }
}

/// Called at the end of the job's thread.
void JobThreads::leave(const RuntimeJob& job) {
  std::thread former;
  {
    std::lock_guard lock(mutex_);
    const auto own =
        std::find_if(members_.begin(), members_.end(), [&](const Member& member) { return member.job.get() == &job; });
    if (own == members_.end()) {
      return;  // `take` has it
    }
    former = std::exchange(last_, std::move(own->thread));
    members_.erase(own);
  }
  if (former.joinable()) {
    former.join();
  }
}

std::list<JobThreads::Member> JobThreads::take() {
  std::list<Member> members;
  std::thread last;
  {
    std::lock_guard lock(mutex_);
    members.swap(members_);
    last.swap(last_);
  }
  if (last.joinable()) {
    last.join();
  }
  return members;
}

}  // namespace torchshare
