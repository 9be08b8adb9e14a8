#include "model/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace torchshare {

std::vector<Rows> split_rows(std::int64_t batch, std::int64_t sub_batch) {
  if (batch < 1) {
    throw std::invalid_argument(fmt::format("batch must have at least 1 row, got {}", batch));
  }
  if (sub_batch < 1) {
    throw std::invalid_argument(fmt::format("sub_batch must be at least 1, got {}", sub_batch));
  }
  std::vector<Rows> pieces;
  for (std::int64_t begin = 0; begin < batch; begin += sub_batch) {
    pieces.push_back({begin, std::min(begin + sub_batch, batch)});
  }
  return pieces;
}

}  // namespace torchshare
