# Copies the shared libraries that PROGRAM needs, less those of the C runtime that every distribution has, into
# DESTINATION, and makes each find its neighbours there ($ORIGIN), so that PROGRAM runs where Debian's packages are
# missing.
# EXTRA names libraries that are opened at run time instead of linked (libvulkan.so.1 may be).
#
# The lock lets one program run this at a time, because programs that are linked at the same time would patch the same
# copies.
cmake_minimum_required(VERSION 3.25)
file(LOCK "${DESTINATION}/.libraries.lock" TIMEOUT 300)

file(GET_RUNTIME_DEPENDENCIES EXECUTABLES "${PROGRAM}"
  RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
  CONFLICTING_DEPENDENCIES_PREFIX conflicts
  PRE_EXCLUDE_REGEXES "^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64|libresolv)\\.so")
if(missing)
  message(FATAL_ERROR "${PROGRAM} needs libraries that were not found: ${missing}")
endif()
# If a name exists both here (as an earlier program's copy) and in the system, the copy counts.
foreach(name IN LISTS conflicts_FILENAMES)
  list(APPEND libraries ${conflicts_${name}})
endforeach()
list(APPEND libraries ${EXTRA})

foreach(library IN LISTS libraries)
  get_filename_component(folder "${library}" DIRECTORY)
  get_filename_component(name "${library}" NAME)
  if(folder STREQUAL DESTINATION OR EXISTS "${DESTINATION}/${name}")
    continue()
  endif()
  # The copy gets the name that programs ask for. It is made under another name first, so that nobody uses half a copy.
  get_filename_component(real "${library}" REALPATH)
  file(COPY_FILE "${real}" "${DESTINATION}/${name}.new")
  execute_process(COMMAND patchelf --set-rpath "$ORIGIN" "${DESTINATION}/${name}.new" RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "patchelf could not set the search path of ${name}; install patchelf (tools/install-deps build)")
  endif()
  file(RENAME "${DESTINATION}/${name}.new" "${DESTINATION}/${name}")
endforeach()
