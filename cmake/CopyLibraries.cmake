# Copies the shared libraries that PROGRAM needs, less those of the C and C++ runtime that every
# distribution has, into DESTINATION, so that PROGRAM runs where Debian's packages are missing.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES "${PROGRAM}"
  RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64|libresolv)\\.so")
if(missing)
  message(FATAL_ERROR "${PROGRAM} needs libraries that were not found: ${missing}")
endif()
foreach(library IN LISTS libraries)
  file(COPY "${library}" DESTINATION "${DESTINATION}" FOLLOW_SYMLINK_CHAIN)
  get_filename_component(real "${library}" REALPATH)
  get_filename_component(real_name "${real}" NAME)
  execute_process(COMMAND patchelf --set-rpath "$ORIGIN" "${DESTINATION}/${real_name}" RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "patchelf could not set the search path of ${DESTINATION}/${real_name}; install patchelf")
  endif()
endforeach()
