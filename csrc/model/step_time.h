#pragma once

namespace torchshare {

/// How long a step takes, by the size of its sub-batches (SJF-BSBF, arXiv 2407.13088):
/// (s - 1) t_comp + (t_comp^delta + t_comm^delta)^(1/delta), t_comp = alpha + beta * rows of a sub-batch.
struct StepTimeModel {
  double alpha = 0;          ///< seconds per sub-batch, whatever its size
  double beta = 0;           ///< seconds per row
  double communication = 0;  ///< seconds per step
  double delta = 1;          ///< overlap of communication and computation: 1: none; large: the shorter one is hidden

  /// Seconds of a step over `batch` rows in `sub_batches` pieces.
  double step(double batch, int sub_batches) const;
};

/// How much device memory a job needs: m0 + m1 * rows that run at once. In bytes.
struct MemoryModel {
  double fixed = 0;
  double per_row = 0;

  double peak(double batch, int sub_batches) const { return fixed + per_row * batch / sub_batches; }
};

}  // namespace torchshare
