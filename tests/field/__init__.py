"""What goes wrong in the field, case by case; docs/field-cases.md says which test covers which."""
