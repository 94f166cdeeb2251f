// The least columns of a long run (delta_scan.comp).
NUMBER(kLongRun, 16)
