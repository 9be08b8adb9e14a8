#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/time.h"

namespace torchshare {

/// One way to run a stage: with so many requests at a time, alone or beside a partner.
struct StageOption {
  int batch = 1;
  std::optional<std::size_t> partner = {};  ///< the lower job beside it, which runs beside one stage at most
  Seconds latency = 0;  ///< of a request, from its arrival to its answer, where none waits for others of its batch
  Seconds service = 0;  ///< of a batch
  Seconds cost = 0;     ///< per request: GPU time that no other job uses
};

/// A job of a workflow, which answers every request of it once.
struct WorkflowStage {
  std::string name;
  std::vector<std::size_t> after;  ///< indices of its predecessors
  std::vector<StageOption> options;
};

struct WorkflowGoal {
  Seconds limit = 0;      ///< of the latency from a request's arrival to the last answer
  double per_second = 0;  ///< requests
  std::uint64_t max_nodes = 25'000;
};

/// What was chosen for a stage. Times count from the arrival of a request at the workflow.
struct PlannedStage {
  std::size_t option = 0;
  Seconds wait = 0;  ///< of a request for others of its batch, at most
  Seconds latency = 0;
  Seconds ends_by = 0;
  Seconds budget = 0;  ///< from the end of its last predecessor to `ends_by`
};

struct WorkflowPlan {
  std::vector<PlannedStage> stages = {};
  std::vector<std::size_t> critical = {};  ///< the stages of the longest path, in order
  Seconds latency = 0;                     ///< of that path
  Seconds cost = 0;                        ///< per request, of all stages
  std::uint64_t nodes = 0;
  bool exact = true;  ///< false: the search was cut short; there may be cheaper plans
};

/// The options with the least cost whose longest path is within the limit, and the limit divided among the stages.
/// The problem is that of ESG (arXiv 2404.16812): an A* search over the stages in topological order. Its lower bound is
/// Lagrange's: an option costs more for its latency, by the stage's share of the longest paths, and for its partner.
/// Each stage is expected to have a device of its own. Throws std::invalid_argument for invalid values, and if no
/// options are within the limit, with the least latency that they can have.
WorkflowPlan plan_workflow(const std::vector<WorkflowStage>& stages, const WorkflowGoal& goal);

}  // namespace torchshare
