"""The HTML report: what was measured for one event of the ledger, on one page. Reads disk only."""
