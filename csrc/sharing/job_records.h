#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "sharing/job_record.h"

namespace torchshare {

/// The jobs of a runtime, by name and in order of priority, then of submission. Of several jobs with one name it has
/// the last; the others have ended. Looking a job up does not take longer the more have ended.
class JobRecords {
  using Place = std::pair<Priority, JobId>;
  using ByPlace = std::map<Place, std::shared_ptr<const JobRecord>>;

 public:
  /// The job that has lost its name to a new one; empty if there was none.
  using Former = ByPlace::node_type;

  /// Adds a job, in the place of the one that has its name. Has no effect if it throws std::bad_alloc.
  Former add(std::shared_ptr<const JobRecord> job);
  /// Removes a job, and gives its name back to `former`.
  void remove(const JobRecord& job, Former former) noexcept;

  /// Null if there is none.
  std::shared_ptr<const JobRecord> share(std::string_view name) const;
  const JobRecord* find(std::string_view name) const { return share(name).get(); }
  /// The first of the highest priority, `self` not counted. Null if there is none.
  const JobRecord* first_beside(const JobRecord& self) const;
  std::size_t size() const { return by_name_.size(); }
  const ByPlace& in_order() const { return by_place_; }

 private:
  ByPlace by_place_;
  std::map<std::string, Place, std::less<>> by_name_;
};

}  // namespace torchshare
