#pragma once

namespace torchshare {

/// Puts our allocator before torch's CUDA allocator. Once per process; again does nothing. See Note [Owned memory].
void install_cuda_memory();

}  // namespace torchshare
