#pragma once

#include "cluster/cluster_policy.h"

namespace torchshare {

std::unique_ptr<ClusterPolicy> make_fifo();
std::unique_ptr<ClusterPolicy> make_fifo_backfill();
std::unique_ptr<ClusterPolicy> make_sjf();
std::unique_ptr<ClusterPolicy> make_srtf();
std::unique_ptr<ClusterPolicy> make_srsf();
std::unique_ptr<ClusterPolicy> make_tiresias();
std::unique_ptr<ClusterPolicy> make_sjf_ffs();
std::unique_ptr<ClusterPolicy> make_sjf_bsbf();
std::unique_ptr<ClusterPolicy> make_pair_srsf();
std::unique_ptr<ClusterPolicy> make_edf();
std::unique_ptr<ClusterPolicy> make_pair_edf();

}  // namespace torchshare
