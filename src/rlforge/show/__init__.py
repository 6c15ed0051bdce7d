"""Screens: displays, reports and cards, which read records and know no actor."""
