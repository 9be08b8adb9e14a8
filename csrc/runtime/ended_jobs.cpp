#include "runtime/ended_jobs.h"

namespace torchshare {

void EndedJobs::add(JobRecord record) {
  const Place place{record.priority, record.id};
  const auto known = by_name_.try_emplace(record.name, place).first;
  const Place former = known->second;
  records_.try_emplace(place, std::move(record));
  known->second = place;
  if (former != place) {
    records_.erase(former);
  }
}

const JobRecord* EndedJobs::find(std::string_view name) const {
  const auto known = by_name_.find(name);
  const auto record = known == by_name_.end() ? records_.end() : records_.find(known->second);
  return record == records_.end() ? nullptr : &record->second;
}

}  // namespace torchshare
