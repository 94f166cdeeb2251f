# Lists the tests that get the label `slow`, which `tools/test --quick` leaves out. The others together take 3 minutes
# on 2 cores, and each subsystem has one of them. A row is one of
#   NAME                 a test, or a program of tests, that is slow as a whole; a regular expression
#   NAME QUICK FILTER    a program whose tests are slow but for those of FILTER, as --gtest_filter takes it
#   NAME SLOW FILTER     a program whose tests are quick but for those of FILTER
# QUICK or SLOW makes two CTest tests of a program that is one (SINGLE): NAME, which is slow, and NAME_quick.
set(BULKHEAD_SLOW_TESTS
  # Models and kernels on the CPU's Vulkan device.
  "forward_model_test QUICK Architectures.Mistral3:RefusedRotations.*:Builtin/Fixture.*:Sizes.*:TransformerTest.RefusesWhatWouldReadElsewhere"
  "forward_kernels_test QUICK SmallKernels.*"
  "forward_units_test QUICK UnitPacking.*:UnitSegments.*:UnitTilings.*"
  "forward_random_test QUICK WildNumbers.*"
  "forward_failures_test QUICK FailingDevice.AnEndBesideAHangIsBounded:FailingDevice.ASlowFirstStepGivesSignsOfLife"
  "forward_growth_test QUICK GrowingCacheSize.*"
  "forward_steady_test"

  # The real worker, alone and under the daemon: one model of the fixtures on all transports, and one over HTTP.
  "worker_integration_test SLOW All/FixtureModel.*:Families/FamilyPrefix.*:KilledWorker.*:Worker.CachedPrefixesChangeNoBit:Worker.SixteenStreams*"
  "model_integration_test QUICK Models/Fixture.*/tiny_qwen3_Q4_K_M:Settings/Setting.ChangesNoToken/ipc_transport_stdio_*:Perplexity*:Embeddings.*:RankingModel.OtherModelsSayWhatToLoad:WorkerFigures.*:KilledWorker.StreamContinuesWithTheSameTokens"
  "structured_output"
  "agent_requests"
  "openai_client"
  "web_page"
  "serving_load_.*"

  # Deaths of the real worker.
  "crash_integration_test QUICK BackOff.*:CacheFolder.*:Causes.*:CrashBudget.*:HeldWorker.*:Neighbours.*:StandbyActions.*:Strikes.*:Transport/HeldPeer.*/shm:Transport/DaemonDeath.*/shm:Transport/Hang.OfABusyWorkerIsNoticedSoon/shm:Transport/Reload.ABadFileIsRefusedWithItsErrorAndChangesNothing/shm:Transport/Standby.TakesOverWithoutLoadingAndIsReplaced/shm"
  "vault_integration_test QUICK Transport/VaultTransports.SuccessorTakesOverWeightsAndPages/shm"
  "fault_loop_test"
  "chaos_short"

  # Clients that take their time, and proxies.
  "surroundings_test SLOW SlowSenders.*"
  "proxy_desync_.*"

  # Searches: every step of the ring's protocol with a rule left out, and the fuzzers that need longest.
  "model.ring_breaks_with_.*"
  "fuzz.(ipc_hostile_peer|gguf_file|config_settings|http_json)")
