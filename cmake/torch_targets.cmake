# torch::host and fmt::header_only, of the torch wheel at TORCHSHARE_TORCH_DIR. Also installed, for C++ programs.

# Headers are included through links, so that their names do not depend on where torch is: ccache finds what another clone,
# or the build of a wheel, has compiled.
file(CREATE_LINK ${TORCHSHARE_TORCH_DIR} ${CMAKE_BINARY_DIR}/torch SYMBOLIC)
# The wheel carries the headers of fmt. A folder of its own keeps torch's other headers out of torchshare_core.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK ${TORCHSHARE_TORCH_DIR}/include/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)
add_library(fmt::header_only INTERFACE IMPORTED)
target_include_directories(fmt::header_only INTERFACE ${CMAKE_BINARY_DIR}/include)
target_compile_definitions(fmt::header_only INTERFACE FMT_HEADER_ONLY)

add_library(torch::host INTERFACE IMPORTED)
target_include_directories(torch::host SYSTEM INTERFACE
  ${CMAKE_BINARY_DIR}/torch/include ${CMAKE_BINARY_DIR}/torch/include/torch/csrc/api/include)
target_link_directories(torch::host INTERFACE ${TORCHSHARE_TORCH_DIR}/lib)
# A compiled package needs libtorch.so, which is found only if the program has loaded it. It has no symbols: without
# --no-as-needed, the linker may leave it out.
target_link_libraries(torch::host INTERFACE c10 torch_cpu -Wl,--push-state,--no-as-needed,-ltorch,--pop-state)
# The loader finds what torch's libraries need by their own run paths. The linker would search the CUDA toolkit's folder
# first, and an older NCCL there lacks symbols.
target_link_options(torch::host INTERFACE LINKER:--allow-shlib-undefined)
