#pragma once

namespace torchshare {

/// Disables autocast's weight cache for the calling thread, until the destructor. Same thread.
///
/// The cache is one table per process. Its lock is held while a weight is cast, which is an op that may have to wait at
/// the gate; and a job that leaves autocast clears the entries of all jobs.
class NoAutocastCache {
 public:
  NoAutocastCache();
  ~NoAutocastCache();
  NoAutocastCache(const NoAutocastCache&) = delete;  // bound to a thread
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  const bool was_enabled_;
};

}  // namespace torchshare
