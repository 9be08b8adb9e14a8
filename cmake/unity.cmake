# unity_sources(OUT NAME SOURCES...): sets OUT to generated files that include TORCHSHARE_UNITY_BATCH of the sources each,
# because most of the time to compile a file is torch's headers. CMAKE_UNITY_BUILD does the same with absolute paths; with
# relative ones, ccache finds what another clone has compiled.
option(TORCHSHARE_UNITY "Compile several files at a time" ON)
set(default_batch 8)  # a change of one file compiles as many
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(default_batch 64)
endif()
set(TORCHSHARE_UNITY_BATCH ${default_batch} CACHE STRING "Files compiled at a time")
unset(CMAKE_UNITY_BUILD CACHE)  # earlier versions cached ON in build folders

function(unity_sources out name)
  if(NOT TORCHSHARE_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/unity)
  set(files "")
  set(number 0)
  while(ARGN)
    list(SUBLIST ARGN 0 ${TORCHSHARE_UNITY_BATCH} batch)
    list(REMOVE_ITEM ARGN ${batch})
    set(text "")
    foreach(source ${batch})
      file(RELATIVE_PATH path ${folder} ${source})
      string(APPEND text "#include \"${path}\"\n")
    endforeach()
    file(GENERATE OUTPUT ${folder}/${name}_${number}.cpp CONTENT "${text}")
    list(APPEND files ${folder}/${name}_${number}.cpp)
    math(EXPR number "${number} + 1")
  endwhile()
  set(${out} ${files} PARENT_SCOPE)
endfunction()
