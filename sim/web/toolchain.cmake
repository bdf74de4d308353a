# Emscripten's toolchain, with the libraries that sim/web/libraries.sh puts into one folder: in /usr/include are the
# headers of another C library, too.
include(/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)
get_filename_component(libraries ${CMAKE_CURRENT_LIST_DIR}/../../build/web-libraries ABSOLUTE)
list(APPEND CMAKE_FIND_ROOT_PATH ${libraries})
list(APPEND CMAKE_PREFIX_PATH ${libraries})
set(Boost_NO_BOOST_CMAKE ON)  # its packages are for the processor that they were built for
set(CMAKE_CXX_FLAGS_INIT "-isystem ${CMAKE_CURRENT_LIST_DIR}/libcxx13 -fwasm-exceptions")
