#pragma once

#include <span>
#include <string>

#include "model/event.h"

namespace torchshare {

/// Writes `events` as a Chrome trace, which https://ui.perfetto.dev opens: one row of tracks per job, named by
/// `job_names[event.job]`. Times count from the first event. The file appears whole or not at all.
/// Throws std::runtime_error that names the path.
void write_timeline_file(std::span<const Event> events, std::span<const std::string> job_names,
                         const std::string& path);

}  // namespace torchshare
