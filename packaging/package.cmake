# The files of the packages and their places: `cpack -G DEB` in a release build, `cpack -G TGZ` in a portable one.
# Help files are made together with a package, because the build runs no programs of Bulkhead.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # a package needs four programs, not every test

if(BULKHEAD_PORTABLE)
  set(usr "")
else()
  set(usr "usr/")
endif()
set(programs "${usr}lib/bulkhead")

install(TARGETS bulkheadd bulkhead-first bulkhead-worker bulkhead RUNTIME DESTINATION ${programs})
# The daemon follows the link, and finds the worker and bulkhead-first in its own folder.
install(CODE "
  set(bin \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${usr}bin\")
  file(MAKE_DIRECTORY \"\${bin}\")
  foreach(program bulkheadd bulkhead)
    file(CREATE_LINK ../lib/bulkhead/\${program} \"\${bin}/\${program}\" SYMBOLIC)
  endforeach()")

# Man pages and completion.
find_package(Python3 COMPONENTS Interpreter)
set(help "${CMAKE_BINARY_DIR}/help-files")
install(CODE "
  execute_process(COMMAND \"${Python3_EXECUTABLE}\" \"${CMAKE_SOURCE_DIR}/packaging/make-help-files\"
    \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\" \"${help}\" COMMAND_ERROR_IS_FATAL ANY)")
install(DIRECTORY ${help}/man/ DESTINATION ${usr}share/man/man1)
install(DIRECTORY ${help}/bash-completion/ DESTINATION ${usr}share/bash-completion/completions)
install(DIRECTORY ${help}/zsh/ DESTINATION ${usr}share/zsh/vendor-completions)
install(DIRECTORY ${help}/fish/ DESTINATION ${usr}share/fish/vendor_completions.d)

install(FILES README.md SECURITY.md config/runtime.yaml DESTINATION ${usr}share/doc/bulkhead)
# The files to which the README links, in the same folders as here.
install(DIRECTORY docs DESTINATION ${usr}share/doc/bulkhead FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
foreach(document bench/RESULTS.md orchestrator/README.md packaging/README.md)
  cmake_path(GET document PARENT_PATH folder)
  install(FILES ${document} DESTINATION ${usr}share/doc/bulkhead/${folder})
endforeach()
install(DIRECTORY profiles DESTINATION ${usr}share/bulkhead)
install(DIRECTORY packaging/prometheus DESTINATION ${usr}share/bulkhead FILES_MATCHING PATTERN "*.yaml" PATTERN "*.json")

set(CPACK_PACKAGE_NAME bulkhead)
set(CPACK_PACKAGE_VENDOR "Bulkhead")
set(CPACK_PACKAGE_CONTACT "The Bulkhead maintainers <bulkhead@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server of large language models whose workers may die")
set(CPACK_PACKAGE_DESCRIPTION "Serves GGUF models over an OpenAI-compatible HTTP API. Each model
runs in a worker process of its own, on any Vulkan device. When a worker
crashes, its streams pause and go on with exactly the tokens that they
would have had.")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)

if(BULKHEAD_PORTABLE)
  install(DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/" DESTINATION ${programs} FILES_MATCHING PATTERN "*.so*")
  set(CPACK_PACKAGING_INSTALL_PREFIX "")
else()
  include("${CMAKE_SOURCE_DIR}/packaging/debian.cmake")
endif()
include(CPack)
