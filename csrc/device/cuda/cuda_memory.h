#pragma once

namespace torchshare {

/// Wraps torch's CUDA allocator in ours. Once per process; further calls do nothing. See Note [Owned memory].
void install_cuda_memory();

}  // namespace torchshare
