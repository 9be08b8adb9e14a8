#include "runtime/autocast_cache.h"

#include <ATen/autocast_mode.h>  // takes half a minute to compile: a file of its own

namespace torchshare {

NoAutocastCache::NoAutocastCache() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoAutocastCache::~NoAutocastCache() {
  at::autocast::set_autocast_cache_enabled(was_enabled_);
}

}  // namespace torchshare
