// How a head's state learns (delta_scan.comp).
VALUES(StateRule)
VALUE(kDeltaRule, kDelta, 0)  // what the state does not know yet: gated delta nets
VALUE(kSumRule, kSum, 1)      // whatever comes: Mamba-2
VALUES_END
