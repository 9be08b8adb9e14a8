#include "sharing/job_records.h"

namespace torchshare {

JobRecords::Former JobRecords::add(std::shared_ptr<const JobRecord> job) {
  const Place place{job->priority, job->id};
  const auto [known, is_new] = by_name_.try_emplace(job->name, place);
  try {
    by_place_.emplace(place, std::move(job));
  } catch (...) {
    if (is_new) {
      by_name_.erase(known);
    }
    throw;
  }
  return is_new ? Former() : by_place_.extract(std::exchange(known->second, place));
}

void JobRecords::remove(const JobRecord& job, Former former) noexcept {
  if (by_place_.erase({job.priority, job.id}) == 0) {
    return;  // another job has its name
  }
  const auto known = by_name_.find(job.name);
  if (former.empty()) {
    by_name_.erase(known);
  } else {
    known->second = former.key();
    by_place_.insert(std::move(former));
  }
}

std::shared_ptr<const JobRecord> JobRecords::share(std::string_view name) const {
  const auto known = by_name_.find(name);
  return known == by_name_.end() ? nullptr : by_place_.at(known->second);
}

const JobRecord* JobRecords::first_beside(const JobRecord& self) const {
  auto first = by_place_.begin();
  if (first != by_place_.end() && first->second->id == self.id) {
    ++first;
  }
  return first == by_place_.end() ? nullptr : first->second.get();
}

}  // namespace torchshare
