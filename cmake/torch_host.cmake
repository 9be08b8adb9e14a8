# torch::host and torch::python: the libraries and headers of the installed torch wheel, found with `import torch`.
# find_package(Torch) fails where there is no CUDA toolkit, because the wheel on PyPI is the CUDA build.
set(TORCHSHARE_PYTHON python3 CACHE STRING "The interpreter whose torch is built against")
if(TORCHSHARE_TORCH_FACTS)  # are asked for again when another torch has been installed since
  list(GET TORCHSHARE_TORCH_FACTS 0 TORCHSHARE_TORCH_DIR)
  file(TIMESTAMP ${TORCHSHARE_TORCH_DIR}/version.py installed)
endif()
if(NOT TORCHSHARE_TORCH_FACTS OR NOT TORCHSHARE_TORCH_FACTS_FOR STREQUAL "${TORCHSHARE_PYTHON} 5 ${installed}")
  execute_process(
    COMMAND ${TORCHSHARE_PYTHON} -c "
import sysconfig, torch, pathlib
paths = sysconfig.get_paths()
print(';'.join([str(pathlib.Path(torch.__file__).parent), paths['include'],
                sysconfig.get_config_var('EXT_SUFFIX'), torch.__version__, torch.version.cuda or 'none']), end='')"
    OUTPUT_VARIABLE facts RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${TORCHSHARE_PYTHON} cannot import torch. Install it first: make build, or pip install torch. "
      "It is not there in pip's isolated builds: give pip --no-build-isolation")
  endif()
  set(TORCHSHARE_TORCH_FACTS "${facts}" CACHE INTERNAL "")
  list(GET TORCHSHARE_TORCH_FACTS 0 TORCHSHARE_TORCH_DIR)
  file(TIMESTAMP ${TORCHSHARE_TORCH_DIR}/version.py installed)
  set(TORCHSHARE_TORCH_FACTS_FOR "${TORCHSHARE_PYTHON} 5 ${installed}" CACHE INTERNAL "")  # so many facts
endif()
list(GET TORCHSHARE_TORCH_FACTS 1 python_include)
list(GET TORCHSHARE_TORCH_FACTS 2 TORCHSHARE_PYTHON_SUFFIX)
list(GET TORCHSHARE_TORCH_FACTS 3 torch_version)
list(GET TORCHSHARE_TORCH_FACTS 4 TORCHSHARE_TORCH_CUDA)
message(STATUS "torchshare: torch ${torch_version} at ${TORCHSHARE_TORCH_DIR}")
if(NOT EXISTS ${python_include}/Python.h)
  message(FATAL_ERROR "missing ${python_include}/Python.h. Install it: sudo apt-get install -y python3-dev")
endif()

include(${CMAKE_CURRENT_LIST_DIR}/torch_targets.cmake)

add_library(torch::python INTERFACE IMPORTED)
target_include_directories(torch::python SYSTEM INTERFACE ${python_include})
target_link_libraries(torch::python INTERFACE torch::host torch_python)
