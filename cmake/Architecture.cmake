# Writes what every target of ours links, as the build system sees it, for the dependency test:
#   ${CMAKE_BINARY_DIR}/architecture/targets.txt      one line a target: NAME FOLDER DEPENDENCY...
# Include it last, when all targets exist.

function(bulkhead_collect_targets directory result)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(children DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    bulkhead_collect_targets("${child}" more)
    list(APPEND targets ${more})
  endforeach()
  set(${result} "${targets}" PARENT_SCOPE)
endfunction()

function(bulkhead_write_architecture)
  bulkhead_collect_targets("${CMAKE_SOURCE_DIR}" targets)
  set(text "")
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "LIBRARY|EXECUTABLE")
      continue()
    endif()
    get_target_property(folder ${target} SOURCE_DIR)
    file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${folder}")
    if(folder STREQUAL "")
      continue()  # bulkhead_options: compiler settings of the top level
    endif()
    set(dependencies "")
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(links ${target} ${property})
      if(links)
        list(APPEND dependencies ${links})
      endif()
    endforeach()
    # $<LINK_ONLY:bulkhead_gpu> and similar expressions are links, too. Only the names in an expression are kept.
    string(REPLACE "::" "@@" dependencies "${dependencies}")
    string(REGEX REPLACE "[$<>:,;()]+" ";" dependencies "${dependencies}")
    string(REPLACE "@@" "::" dependencies "${dependencies}")
    list(REMOVE_DUPLICATES dependencies)
    list(REMOVE_ITEM dependencies "" "LINK_ONLY" "bulkhead_options")
    string(REPLACE ";" " " dependencies "${dependencies}")
    string(APPEND text "${target} ${folder} ${dependencies}\n")
  endforeach()
  file(WRITE "${CMAKE_BINARY_DIR}/architecture/targets.txt.new" "${text}")
  file(COPY_FILE "${CMAKE_BINARY_DIR}/architecture/targets.txt.new"
       "${CMAKE_BINARY_DIR}/architecture/targets.txt" ONLY_IF_DIFFERENT)
endfunction()

bulkhead_write_architecture()
