#pragma once

#include <memory>
#include <string_view>

namespace torchshare {

class Device;

/// Makes the device of that name: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:<n>". Throws
/// std::invalid_argument.
std::shared_ptr<Device> make_device(std::string_view name);

}  // namespace torchshare
