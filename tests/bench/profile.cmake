if(TARGET equipoise_profile)
  equipoise_bench(bench_profile LIBS equipoise_profile SOURCES bench_profile.cpp)
endif()
