#pragma once

namespace torchshare {

extern thread_local int news_left;  // until operator new fails, and goes on failing; negative: never

}  // namespace torchshare
