#pragma once

#include "model/time.h"

namespace torchshare {

/// Step time as a function of the sub-batch size (SJF-BSBF, arXiv 2407.13088):
/// (s - 1) t_comp + (t_comp^delta + t_comm^delta)^(1/delta), t_comp = alpha + beta * rows of a sub-batch.
struct StepTimeModel {
  Seconds alpha = 0;          ///< per sub-batch, of any size
  Seconds beta = 0;           ///< per row
  Seconds communication = 0;  ///< per step
  double delta = 1;           ///< overlap of communication and computation: 1: none; large: the shorter one is hidden

  /// Step time for `batch` rows in `sub_batches` sub-batches.
  Seconds step(double batch, int sub_batches) const;
};

/// Device memory that a job needs: m0 + m1 * rows that run at once. In bytes.
struct MemoryModel {
  double fixed = 0;
  double per_row = 0;

  double peak(double batch, int sub_batches) const { return fixed + per_row * batch / sub_batches; }
};

}  // namespace torchshare
