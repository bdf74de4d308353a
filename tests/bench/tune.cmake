# How good a search is compared with random candidates, and how long it takes: tune_quality STUDY...
if(TARGET equipoise_tune)
  add_executable(tune_quality ${CMAKE_CURRENT_LIST_DIR}/tune_quality.cpp)
  target_link_libraries(tune_quality PRIVATE equipoise_tune equipoise_flags)
  target_include_directories(tune_quality PRIVATE ${PROJECT_SOURCE_DIR})
endif()
