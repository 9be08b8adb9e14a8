#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace torchshare {

struct JobRecord;
class JobRecords;

/// A job whose end another job waits for.
struct Predecessor {
  std::string name;
  bool must_finish = false;                   ///< the other job starts only if it finishes
  std::shared_ptr<const JobRecord> job = {};  ///< null until `bind_predecessors`
};

/// Reads "<job>" and "any:<job>", which wait for any end, and "ok:<job>"; "afterany:" and "afterok:" mean the same.
/// Throws std::invalid_argument.
Predecessor parse_predecessor(std::string_view text);

/// Finds the jobs that are not bound yet by their names. Throws std::invalid_argument for a name that no job has, and
/// for the job's own.
void bind_predecessors(JobRecord& job, const JobRecords& jobs);
void unbind_predecessors(JobRecord& job) noexcept;

bool have_ended(const std::vector<Predecessor>& predecessors);
/// How each has ended, as "'a' finished, 'b' was cancelled".
std::string ends_of(const std::vector<Predecessor>& predecessors);
/// The first that had to finish and did not; null if there is none.
const Predecessor* find_broken(const std::vector<Predecessor>& predecessors);

}  // namespace torchshare
