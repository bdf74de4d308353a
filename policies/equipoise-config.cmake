include("${CMAKE_CURRENT_LIST_DIR}/equipoise-targets.cmake")
