#pragma once

#include <cstdint>
#include <vector>

namespace torchshare {

/// Rows [begin, end) of a batch: one sub-batch.
struct Rows {
  std::int64_t begin;
  std::int64_t end;
};

/// Splits `batch` rows into sub-batches of `sub_batch` rows; the last one may be smaller. Throws std::invalid_argument.
std::vector<Rows> split_rows(std::int64_t batch, std::int64_t sub_batch);

}  // namespace torchshare
