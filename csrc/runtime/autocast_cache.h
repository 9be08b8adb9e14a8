#pragma once

namespace torchshare {

/// The calling thread casts without autocast's cache of weights, until the destructor. Same thread.
///
/// The cache is one table for the process, under a lock that is held while a weight is cast, which is an op that may
/// have to wait at the gate; and a job that leaves autocast drops the entries of all jobs.
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
