#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/job.h"

namespace torchshare {

/// The jobs of a runtime that have not ended, and their threads. A thread that ends joins the one that ended before it:
/// one at most is left to join, and nothing else waits for it. Any thread.
class JobThreads : public std::enable_shared_from_this<JobThreads> {
 public:
  struct Member {
    std::shared_ptr<RuntimeJob> job;
    Job::Body body;  // moved to the thread at its start
    std::thread thread;
  };

  void add(std::shared_ptr<RuntimeJob> job, Job::Body body);
  /// Adds a job and starts it; adds none if its thread cannot be created: throws std::runtime_error.
  void start(std::shared_ptr<RuntimeJob> job, Job::Body body);
  /// Starts the jobs that have no thread yet. Throws std::runtime_error if one cannot be created.
  void start_all();
  void cancel_all();
  /// The jobs that have not ended; from then on it has none. Joins the thread that ended last.
  std::list<Member> take();

 private:
  void launch(Member& member);
  void leave(const RuntimeJob& job);

  std::mutex mutex_;  // guards the fields below
  std::list<Member> members_;
  std::thread last_;  // of the job that ended last
};

}  // namespace torchshare
