# The parts of the Debian package that the archives lack: unit, settings, scripts, control file.
set(made "${CMAKE_BINARY_DIR}/debian")

# The settings are the reference with one change: streams survive an upgrade.
file(READ "${CMAKE_SOURCE_DIR}/config/runtime.yaml" reference)
string(REGEX REPLACE "\n( +)journal_path: \"?\"?\n" "\n\\1journal_path: /var/lib/bulkhead/journal\n" settings "${reference}")
if(settings STREQUAL reference)
  message(FATAL_ERROR "config/runtime.yaml has no empty journal_path that the package could set")
endif()
file(WRITE "${made}/runtime.yaml" "${settings}")
install(FILES "${made}/runtime.yaml" DESTINATION etc/bulkhead)
install(FILES packaging/bulkhead.service packaging/bulkhead.socket DESTINATION lib/systemd/system)
install(FILES packaging/private-root.conf DESTINATION usr/share/bulkhead)

install(CODE "
  set(doc \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/usr/share/doc/bulkhead\")
  execute_process(COMMAND gzip -9nc \"${CMAKE_SOURCE_DIR}/packaging/debian/changelog\" OUTPUT_FILE \"\${doc}/changelog.gz\"
    COMMAND_ERROR_IS_FATAL ANY)")
install(FILES packaging/debian/copyright DESTINATION usr/share/doc/bulkhead)

set(CPACK_PACKAGING_INSTALL_PREFIX "/")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "init-system-helpers (>= 1.52), passwd")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "mesa-vulkan-drivers")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(scripts "${CMAKE_SOURCE_DIR}/packaging/debian")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${scripts}/conffiles;${scripts}/postinst;${scripts}/prerm;${scripts}/postrm")
